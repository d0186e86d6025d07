"""Worker process that a runner starts: `python -m nearkin.zoo.worker_process NAME GROUP`.

The zoo is given by the variables `$NEARKIN_ZOO` and `$NEARKIN_BLOBS`. The worker stops when its standard input ends, as
it does when the process that started it dies, or after SIGTERM; SIGINT is left to that process.
"""

import os
import signal
import sys
import threading

from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.zoo_runner import BLOBS, ZOO, open_worker


def main() -> None:
    """Do jobs until the standard input ends."""
    name, group = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = open_worker(SolvedTasks(os.environ[ZOO], create=False, blobs=os.environ[BLOBS]), name, group)

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        worker.stopping.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, frame: worker.stopping.set())
    worker.run()


if __name__ == "__main__":
    main()
