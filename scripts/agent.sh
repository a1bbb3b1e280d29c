#!/usr/bin/env bash
# Compiles the agent (agent/src/*.c) for amd64 and arm64 with clang 19 and lld 19:
#   scripts/agent.sh [FOLDER]    into FOLDER (default: agent, where they are committed)
# The same sources, compiler and linker make the same bytes, wherever the tree lies.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
export LC_ALL=C # the order of the sources is part of the result
out=$(realpath "${1:-$ROOT/agent}")
cd "$ROOT/agent/src"

resources=$(clang-19 -print-resource-dir)
# shellcheck disable=SC2054 # the commas are the linker's
flags=(
	-std=gnu11 -O2 -Wall -Wextra -Werror
	# Nothing of libc but what sys.h declares; nothing that a thread of the target would have to set up.
	-ffreestanding -fno-builtin -nostdlib -nostdinc -isystem "$resources/include" -fno-stack-protector
	-fPIC -shared -fvisibility=hidden -fno-exceptions -fno-ident -fno-plt
	# Unwind tables, so that samples of the target's threads inside a callback keep their stacks.
	-fasynchronous-unwind-tables
	-fuse-ld=lld-19 -Wl,-soname,inferscope -Wl,--build-id=sha1 -Wl,--hash-style=gnu -Wl,-Bsymbolic
	-Wl,-z,now -Wl,-z,relro -Wl,-z,noexecstack -Wl,-z,text -Wl,--gc-sections
)

# Branch targets are marked, so that a process that insists on that (CET, BTI) may load the agent.
# A probe on our code may be optimised into a call, which writes below the stack pointer (kernel 6.18).
clang-19 --target=x86_64-linux-gnu -mno-red-zone -fcf-protection=full "${flags[@]}" -o "$out/agent_amd64.so" ./*.c
# Outline atomics need a helper of libgcc's; load-linked ones run on every arm64.
clang-19 --target=aarch64-linux-gnu -mno-outline-atomics -mbranch-protection=bti "${flags[@]}" \
	-o "$out/agent_arm64.so" ./*.c
chmod 644 "$out"/agent_*.so
