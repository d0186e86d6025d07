"""nearkin: near kin of learning tasks by Fisher geometry."""

__version__ = "0.1.0"
