"""Pure geometry on tensors: frames and their transport, rod strains, topology of chains, checks of input."""
