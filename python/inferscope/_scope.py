"""The scope: a named stretch of a program."""

import contextvars
import functools
import inspect
import itertools
import json
import os
import sys
import threading
import time

from . import _ring

_now = time.monotonic_ns
# The scopes that are open here and recorded, per thread and per asyncio task: (scope, number, start, those around it).
_stack = contextvars.ContextVar("inferscope_scopes", default=None)


class _State:
    """What the scopes of a process share. After a fork the child has one of its own."""

    def __init__(self):
        self.lock = threading.Lock()
        self.numbers = itertools.count(1)
        self.tasks = itertools.count(1)
        self.ring = self.words = None
        self.broken = os.environ.get("INFERSCOPE_ENABLED", "true").strip().lower() in ("0", "false", "no", "off")

    def open(self):
        """Makes the ring, once; a system that cannot make one is not asked again."""
        with self.lock:
            if self.words is None and not self.broken:
                try:
                    self.ring = _ring.Ring()
                    self.words = self.ring.words
                except Exception:  # whatever a strange platform says: scopes may never fail a program
                    self.broken = True
        return self.words


_state = _State()


def _begin():
    """Makes the ring when the package is imported: the daemon looks for it when a program maps libraries, as imports
    do.

    `inferscope run` says by INFERSCOPE_RUN that a daemon is there already: until it has found the ring, scopes are
    written without its lease, so that those at the very beginning are not missing.
    """
    words = _state.open()
    if words is not None and os.environ.get("INFERSCOPE_RUN"):
        words[4] = _now() + 10 * 10**9


def _forked():
    """Gives a child a ring of its own: at once where somebody records its parent, else at its first scope."""
    global _state
    parent, _state = _state.words, _State()
    lease = parent[4] if parent is not None else 0
    if lease > _now():
        words = _state.open()
        if words is not None:
            words[4] = lease


_begin()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _recording():
    """Whether a daemon records now; the words are looked at without a lock."""
    words = _state.words
    if words is None:
        if _state.broken:
            return False
        words = _state.open()
        if words is None:
            return False
    lease = words[4]
    return lease != 0 and lease > _now()


def _task():
    """A number for the asyncio task that runs here; 0 where none does."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return 0
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return 0
    if task is None:
        return 0
    number = getattr(task, "_inferscope_task", 0)
    if not number:
        number = next(_state.tasks)
        try:
            task._inferscope_task = number
        except AttributeError:  # a task of another implementation
            return id(task) & 0xFFFFFFFFFFFF
    return number


def _plain(value):
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


class scope:
    """A named stretch of the program: a context manager, and a decorator of functions and coroutines.

    name        what reports call it; those with the same name are counted together
    attributes  what else is known of this one, e.g. batch=32; values that are no plain ones become strings

    A scope may be used again, also within itself. An exception passes through, and the scope ends there.
    """

    __slots__ = ("name", "attributes")

    def __init__(self, name, **attributes):
        self.name = str(name)
        self.attributes = attributes

    def __enter__(self):
        if _recording():
            _stack.set((self, next(_state.numbers), _now(), _stack.get()))
        return self

    def __exit__(self, *_):
        top = _stack.get()
        if top is not None and top[0] is self:
            self._leave(top)
        return False

    def _leave(self, top):
        end = _now()
        _, number, start, around = top
        _stack.set(around)
        state = _state
        if state.words is None or not _recording():  # a child after a fork, or the daemon went
            return
        try:
            attributes = json.dumps({k: _plain(v) for k, v in self.attributes.items()}) if self.attributes else None
            if attributes is not None and len(attributes) > _ring.LONGEST:  # part of an object is none
                attributes = '{"attributes": "too long"}'
            task, thread = _task(), threading.get_native_id()
            with state.lock:
                state.ring.write(start, end, thread, self.name, number, around[1] if around else 0, task, attributes)
        except Exception:  # never the program's problem
            state.broken, state.words = True, None

    def __call__(self, function):
        """Returns function with a scope of this name around each call."""
        name, attributes = self.name, self.attributes
        if inspect.iscoroutinefunction(function):
            @functools.wraps(function)
            async def coroutine(*args, **kwargs):
                with scope(name, **attributes):
                    return await function(*args, **kwargs)
            return coroutine

        @functools.wraps(function)
        def call(*args, **kwargs):
            with scope(name, **attributes):
                return function(*args, **kwargs)
        return call
