"""Errors, seeded generators, events, budgets, durable files; imports no other package of nearkin."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.core.budget import Budget as Budget
    from nearkin.core.errors import DataError as DataError
    from nearkin.core.errors import MismatchError as MismatchError
    from nearkin.core.errors import MissingExtraError as MissingExtraError
    from nearkin.core.errors import NearkinError as NearkinError
    from nearkin.core.errors import OptionError as OptionError
    from nearkin.core.errors import TrainingError as TrainingError
    from nearkin.core.errors import ZooError as ZooError
    from nearkin.core.events import Caution as Caution
    from nearkin.core.events import Checkpoint as Checkpoint
    from nearkin.core.events import Event as Event
    from nearkin.core.events import Listener as Listener
    from nearkin.core.events import Note as Note
    from nearkin.core.events import Operation as Operation
    from nearkin.core.events import Progress as Progress
    from nearkin.core.events import Work as Work
    from nearkin.core.events import finish as finish
    from nearkin.core.events import listening as listening
    from nearkin.core.events import operation as operation
    from nearkin.core.rng import Streams as Streams
    from nearkin.core.rng import derived_seed as derived_seed
    from nearkin.core.state import State as State
else:
    __getattr__, __dir__, __all__ = exports(__name__)
