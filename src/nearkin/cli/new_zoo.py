"""A zoo for a command that stores something in it: made if there is none, and removed again if the command fails."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import nearkin as nk
from nearkin.cli.console import Settings
from nearkin.core.addresses import is_shared
from nearkin.core.errors import NearkinError
from nearkin.core.lazy import Lazy

if TYPE_CHECKING:
    from nearkin.run import journal
    from nearkin.store import sqlite
else:
    journal, sqlite = Lazy("nearkin.run.journal"), Lazy("nearkin.store.sqlite")


@contextmanager
def zoo_or_new(settings: Settings) -> Iterator["nk.Zoo"]:
    """The zoo; if its folder was made for this block, which failed, and holds nothing, the folder is removed."""
    new = not is_shared(settings.zoo_path) and not Path(settings.zoo_path).exists()
    with settings.open_zoo() as zoo:
        try:
            yield zoo
        except BaseException:
            if new:
                _remove_unused(zoo)
            raise


def _remove_unused(zoo: "nk.Zoo") -> None:
    """Remove the folder of a zoo without tasks in which no other command works."""
    folder = zoo.path
    with suppress(NearkinError, OSError), zoo.catalogue.database.writing():  # no task is stored meanwhile
        files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
        journals = [path for path in files if path.parts[0] == journal.FOLDER]
        others = [path for path in files if path not in journals and not path.name.startswith(sqlite.DATABASE)]
        if not len(zoo) and not others and len(journals) <= 1:
            shutil.rmtree(folder)
