"""What equilibria need beyond a step in time: how a search for one settles, and whether it is stable."""
