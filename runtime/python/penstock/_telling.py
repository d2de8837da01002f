"""Telling: what the engine is told, one after another, as it takes one call at a time."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait

from ._refusal import PenstockError


class Telling:
    """`by_thread`: a thread of its own tells, so that backward need not wait for gradients to arrive from a device. Else
    all is told at once. Of use in the process alone that has made it."""

    def __init__(self, by_thread):
        self.pid = os.getpid()
        self._thread = ThreadPoolExecutor(1, "penstock") if by_thread else None
        self._told = []

    def tell(self, verb, *arguments):
        if self._thread is None:
            verb(*arguments)
            return
        if os.getpid() != self.pid:  # the thread is the parent's
            raise PenstockError("this process was forked; the store belongs to its parent")
        self._told.append(self._thread.submit(verb, *arguments))

    def wait(self):
        """All has been told, or refused, which hear_out() says."""
        wait(self._told)

    def hear_out(self):
        """All has been told, or the first refusal is raised."""
        wait(self._told)  # an interrupt leaves them to fall_silent()
        told, self._told = self._told, []
        for one in told:
            one.result()

    def fall_silent(self):
        """What has not been told need not be."""
        if os.getpid() != self.pid:
            return
        told, self._told = self._told, []
        for one in told:
            one.cancel()
        wait(told)

    def leave(self):
        """What has not been told is not told any more."""
        if self._thread is not None and os.getpid() == self.pid:
            if threading.current_thread() not in self._thread._threads:  # the last reference may end there
                self.fall_silent()
            self._thread.shutdown(wait=False)
