"""The version of the package: the one place where it stands."""

__all__ = ["__version__"]

__version__ = "0.2.0"
