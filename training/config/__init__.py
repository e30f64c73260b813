"""The config of a fit: a TOML file, checked field by field; each module here defines one part of it."""

from training.config.config import Config, Logging
from training.config.data import Data
from training.config.fitted import Constant, Term
from training.config.loading import load
from training.config.rod import Robot, Simulation
from training.config.stages import Loss, Noise, Stage

__all__ = ["Config", "Constant", "Data", "Logging", "Loss", "Noise", "Robot", "Simulation", "Stage", "Term", "load"]
