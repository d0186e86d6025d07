"""The `Zoo` facade and the workflows on it: add, near, matrix, search, transfer, connect, export."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.zoo.connect import Connection as Connection
    from nearkin.zoo.search import Architecture as Architecture
    from nearkin.zoo.transfer import Transfer as Transfer
    from nearkin.zoo.zoo import Zoo as Zoo
else:
    __getattr__, __dir__, __all__ = exports(__name__)
