"""Signals act on a thread of their own: whatever the main thread holds, an action may take a lock."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import faulthandler, os, signal, threading
from kbroker.app.signals import SignalThread

faulthandler.dump_traceback_later(20, exit=True)
signals, lock, acted = SignalThread(), threading.Lock(), threading.Semaphore(0)

def act():
    with lock:
        acted.release()

def fail():
    raise RuntimeError("no")

signals.on(signal.SIGUSR1, fail)
signals.on(signal.SIGTERM, act)
for _ in range(100):
    with lock:  # a handler that acts would wait here for itself
        os.kill(os.getpid(), signal.SIGTERM)
        assert not acted.acquire(timeout=0.001)
    acted.acquire()
    os.kill(os.getpid(), signal.SIGUSR1)  # what fails is logged, and the next one acts
print("acted")
"""


def test_an_action_takes_a_lock_that_the_main_thread_held() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "acted\n"), done.stderr
    assert done.stderr.count("the action for SIGUSR1 failed") >= 99
