"""Where a zoo is: opening of its database and its blobs, in a folder or shared."""

from pathlib import Path

import sqlalchemy as sql

from nearkin.core.addresses import is_shared, without_secrets
from nearkin.core.errors import ZooError, require
from nearkin.core.objects import FolderObjects, Objects
from nearkin.core.url_objects import objects_at
from nearkin.store.blob_cache import BlobCache
from nearkin.store.blobs import Blobs
from nearkin.store.database import Database, NoZooError, upgrade
from nearkin.store.job_table import DATABASE as JOB_DATABASE
from nearkin.store.job_table import JOBS
from nearkin.store.postgres import PostgresDatabase, open_postgres
from nearkin.store.schema import ZOO, TableSet, meta
from nearkin.store.sqlite import DATABASE, SqliteDatabase, open_folder


def open_database(address: str | Path, create: bool = True, tables: TableSet = ZOO, blobs: str = "") -> Database:
    """Open the database of a zoo, in a folder or at `postgresql://…`; see `Catalogue`."""
    if is_shared(str(address)):
        if blobs:
            objects_at(blobs)  # before anything is created
        return open_postgres(str(address), create, tables, _stored_form(blobs), others=[JOBS])
    require(
        "://" not in str(address),
        f"got the address {without_secrets(str(address))}, expected a folder or postgresql://…",
        ZooError,
    )
    require(not blobs, "got --blobs for a zoo in a folder, which keeps its blobs itself; leave it out", ZooError)
    return open_folder(Path(address), create, tables)


def upgrade_zoo(address: str | Path, tables: TableSet = ZOO) -> tuple[int, int]:
    """Migrate the tables of a zoo and of its jobs to the newest version; returns the version before and after."""
    if is_shared(str(address)):
        databases: list[Database] = [PostgresDatabase(str(address), each) for each in (tables, JOBS)]
    else:
        files = {Path(address, DATABASE): tables, Path(address, JOB_DATABASE): JOBS}
        found = {file: each for file, each in files.items() if file.is_file() and Path(address, DATABASE).is_file()}
        databases = [SqliteDatabase(file, each) for file, each in found.items()]
    try:
        versions = [upgrade(database) for database in databases]
    finally:
        for database in databases:
            database.close()
    if not versions or versions[0][1] == 0:
        place = without_secrets(str(address))
        raise NoZooError(f"there is no zoo at {place}; nearkin add makes one, or name another with --zoo")
    return versions[0]


def open_blobs(files: Objects) -> Blobs:
    """The blobs among the files of a zoo; those of other machines have local copies."""
    near = isinstance(files, FolderObjects) or files.label().startswith("memory://")
    return Blobs(files.within("blobs"), None if near else BlobCache.of_user())


def _stored_form(url: str) -> str:
    """The URL of blobs as it is stored: without secrets, a folder with its whole path."""
    return without_secrets(url) if not url or "://" in url else str(Path(url).absolute())


def blob_url(database: Database, given: str) -> str:
    """The URL of the blobs of a shared zoo: the given one, which must be the stored one, or the stored one."""
    with database.reading() as connection:
        stored = connection.scalar(sql.select(meta.c.value).where(meta.c.key == "blobs")) or ""
    require(
        not given or _stored_form(given) == stored,
        f"got --blobs {without_secrets(given)}, but the blobs of this zoo are at {stored}; leave --blobs out, or name "
        f"another zoo",
        ZooError,
    )
    return given or stored
