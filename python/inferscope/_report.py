"""Asking for the report of the running program."""

import os
import shutil
import subprocess


class ReportError(RuntimeError):
    """The report could not be had; the text says why and what to do."""


def save_report(path="report.md", last=None, format=None):
    """Writes the report of this process to path, and returns path.

    last    how much of the past it is about, e.g. "30s"; None: everything that the daemon holds
    format  "markdown", "html" or "json"; None: what the ending of path says, else Markdown

    A daemon must watch this process (`inferscoped --pid`, or `inferscope run`), and the `inferscope` program must be on
    the PATH, or named by INFERSCOPE_BIN. Raises ReportError where that does not hold. Where INFERSCOPE_ENABLED=0 says
    so it does nothing, and returns None.
    """
    if os.environ.get("INFERSCOPE_ENABLED", "true").strip().lower() in ("0", "false", "no", "off"):
        return None
    program = os.environ.get("INFERSCOPE_BIN") or shutil.which("inferscope")
    if not program:
        raise ReportError(
            "save_report: the program inferscope is not on the PATH: install it, or name it in INFERSCOPE_BIN"
        )
    form = format or {".html": "html", ".htm": "html", ".json": "json"}.get(
        os.path.splitext(str(path))[1].lower(), "markdown"
    )
    command = [program, "report", "--pid", str(_pid()), "--format", form, "-o", str(path)]
    if last:
        command += ["--last", str(last)]
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    except OSError as problem:
        raise ReportError(f"save_report: {program} cannot be run: {problem}") from problem
    if done.returncode:
        raise ReportError(f"save_report: {done.stderr.strip() or program + ' failed'}")
    return path


def _pid():
    """The pid of this process as the host sees it, where /proc says so (NSpid of proc(5) begins with the outermost)."""
    try:
        with open("/proc/self/status") as lines:
            for line in lines:
                if line.startswith("NSpid:"):
                    return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return os.getpid()
