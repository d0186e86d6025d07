"""Search spaces: count, number, draw, enumerate and step between genotypes."""

from nearkin.search.spaces.registry import register_space, space

__all__ = ["register_space", "space"]
