"""What a fit is made of: a TOML file, checked field by field, with `--set key=value` on top."""

from training.config.config import Config, Constant, Data, Logging, Loss, Noise, Robot, Simulation, Stage, Term, load

__all__ = ["Config", "Constant", "Data", "Logging", "Loss", "Noise", "Robot", "Simulation", "Stage", "Term", "load"]
