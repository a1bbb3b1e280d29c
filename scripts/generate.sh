#!/usr/bin/env bash
# Compiles the BPF programs (bpf/*.bpf.c) with their Go side, and the agent (agent/src/*.c), for amd64 and arm64.
# With --check it only says whether what is in the tree is what comes out, and
# touches nothing; it exits 77 where another clang makes the question pointless.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_go
cd "$ROOT"

# Another clang makes other objects from the same source: check with this one only.
pinned=19.1.7

if [ "${1:-}" != --check ]; then
	go generate ./bpf
	scripts/agent.sh
	exit 0
fi

have=$(clang-19 -dumpversion)
if [ "$have" != "$pinned" ]; then
	say "clang $have is here and the committed objects were made by clang $pinned"
	exit 77
fi
# In a copy elsewhere: nothing in the tree changes under a running build, and
# objects that depend on where they were made show up as a difference.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r go.mod go.sum bpf "$copy"
(cd "$copy" && find bpf -maxdepth 1 -name '*_bpfel.*' -delete && go generate ./bpf >&2)
if ! diff -rq bpf "$copy/bpf" >&2; then
	die "the generated BPF files are not what bpf/*.bpf.c makes: run 'make generate' and commit the result"
fi
scripts/agent.sh "$copy"
for image in agent_amd64.so agent_arm64.so; do
	cmp "agent/$image" "$copy/$image" >&2 ||
		die "agent/$image is not what agent/src makes: run 'make generate' and commit the result"
done
