"""One architecture for several tasks: transfer between their encoders by matching distributions."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.multitask.matching import Matching as Matching
    from nearkin.multitask.matching import MatchingOptions as MatchingOptions
    from nearkin.multitask.matching import embedding_distance as embedding_distance
    from nearkin.multitask.matching import match_encoders as match_encoders
    from nearkin.multitask.matching import set_differences as set_differences
    from nearkin.multitask.matching import similarity_distance as similarity_distance
    from nearkin.multitask.matching import weight_distance as weight_distance
else:
    __getattr__, __dir__, __all__ = exports(__name__)
