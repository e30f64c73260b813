"""How it is fitted: the loop and its steps, how sure it is of what it finds, runs that go on."""
