"""Whose memory a process holds: resident pages by the kind of mapping, and live blocks of malloc by the library that
asked for them."""

import collections
import os
import struct
import subprocess

from gpu_workload import grown

HERE = os.path.dirname(os.path.abspath(__file__))
OWNER, NAME = 128, 104  # struct owner of allocations.c
LEFT = 10  # kB of the agent's that an attachment may leave
NVIDIA = ("libcuda", "libcupti", "libnv", "libcudart")  # what the names of its libraries begin with


def owners(pid):
    """Resident kB of the unnamed mappings of a process by whose they are: the agent's own are left out of core dumps
    (dd of VmFlags, proc(5)), arenas of the C library begin at multiples of 64 MB."""
    sizes = collections.Counter()
    with open(f"/proc/{pid}/smaps") as lines:
        for line in lines:
            words = line.split()
            if not words[0].endswith(":"):
                begin, end = (int(x, 16) for x in words[0].split("-"))
                name, rss = words[5] if len(words) > 5 else "", 0
            elif words[0] == "Rss:":
                rss = int(words[1])
            elif words[0] == "VmFlags:" and name in ("", "[heap]"):
                owner = (
                    "agent"
                    if "dd" in words
                    else "heap"
                    if name
                    else "arena"
                    if begin % (64 << 20) == 0
                    else "other, large"
                    if end - begin >= 8 << 20
                    else "other"
                )
                sizes[owner] += rss
    return sizes


class Holdings:
    """What a workload, which Allocations were given to, holds now."""

    def __init__(self, w, allocations):
        self.mappings, self.owners, self.live = w.memory(), owners(w.pid), allocations.live()

    def grown(self, earlier):
        return (
            f"mappings {grown(earlier.mappings, self.mappings)} | unnamed, by owner "
            f"{grown(earlier.owners, self.owners)} | "
            f"blocks of malloc {grown(earlier.live, self.live, 8)}"
        )

    def nvidias(self):
        """kB of blocks of malloc that CUPTI and the driver asked for."""
        return sum(kb for library, kb in self.live.items() if library.startswith(NVIDIA))

    def ours(self):
        """kB that the agent may have taken: its own mappings, and blocks of malloc that anybody but NVIDIA's libraries
        asked for, so the program's own, too."""
        mapped = sum(kb for name, kb in self.mappings.items() if "memfd:inferscope" in name)
        return self.owners["agent"] + mapped + sum(self.live.values()) - self.nvidias()


def left_by(n, earlier, later):
    """Figures and failures of n attachments between two Holdings: not the first ones, which take what is taken once."""
    if n < 2:
        return {}, []
    ours, nvidias = later.ours() - earlier.ours(), later.nvidias() - earlier.nvidias()
    failures = [f"each attachment leaves {ours / n:.0f} kB of the agent's"] if ours / n > LEFT else []
    return {
        "kB in each of them ours/blocks of NVIDIA's": f"{ours / n:.1f}/{nvidias / n:.1f}",
        "grew most in them": later.grown(earlier),
    }, failures


class Allocations:
    """Counts the blocks of malloc that a program holds, by library: preloads allocations.c into it."""

    def __init__(self, folder, name=""):
        self.library, self.file = f"{folder}/allocations.so", f"{folder}/allocations-{os.getpid()}{name}"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", self.library, f"{HERE}/allocations.c"], check=True)

    def environment(self):
        """What to add to the program's environment; counts begin anew."""
        if os.path.exists(self.file):
            os.unlink(self.file)
        return {"LD_PRELOAD": os.path.abspath(self.library), "ALLOCATIONS_FILE": os.path.abspath(self.file)}

    def live(self):
        """{library: live kB}."""
        with open(self.file, "rb") as f:
            data = f.read()
        sizes = collections.Counter()
        for at in range(0, len(data), OWNER):
            name = data[at:at + NAME].split(b"\0")[0].decode(errors="replace")
            if name:
                sizes[os.path.basename(name)] += struct.unpack_from("<q", data, at + NAME)[0] / 1000
        return sizes
