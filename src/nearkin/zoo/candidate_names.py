"""Names that candidates of a ranking have, and that no model may be given."""

from nearkin.core.errors import ZooError, require
from nearkin.store.records import require_name

PIXELS = "pixels"
"""Name of the candidate without a network: the inputs themselves are its features."""

ZOO = "zoo:"
"""Before the name of a candidate of a zoo."""


def require_model_name(name: str) -> None:
    """Refuse a name for a model that is not valid, or by which `rank` would not find it."""
    require_name(name)
    require(
        name != PIXELS and not name.startswith(ZOO),
        f"{name!r} cannot name a model: for rank, {PIXELS} are the raw inputs and {ZOO} stands before names of the "
        f"zoo; choose another name",
        ZooError,
    )
