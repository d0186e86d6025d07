"""Storage of a zoo: records, migrations, SQLite, PostgreSQL, blobs, bundles, integrity checks; imports only `core`."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.store.blobs import Blobs as Blobs
    from nearkin.store.bundle import export_bundle as export_bundle
    from nearkin.store.bundle import import_bundle as import_bundle
    from nearkin.store.catalogue import Catalogue as Catalogue
    from nearkin.store.integrity import CleanupResult as CleanupResult
    from nearkin.store.integrity import DamagedBlob as DamagedBlob
    from nearkin.store.integrity import Health as Health
    from nearkin.store.integrity import clean as clean
    from nearkin.store.integrity import examine as examine
    from nearkin.store.protocol import Store as Store
    from nearkin.store.read_only import ReadOnlyStore as ReadOnlyStore
    from nearkin.store.records import ArtifactRecord as ArtifactRecord
    from nearkin.store.records import NewArtifact as NewArtifact
    from nearkin.store.records import NewTask as NewTask
    from nearkin.store.records import PendingArtifact as PendingArtifact
    from nearkin.store.records import TaskRecord as TaskRecord
else:
    __getattr__, __dir__, __all__ = exports(__name__)
