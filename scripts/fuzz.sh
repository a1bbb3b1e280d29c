#!/usr/bin/env bash
# Runs every fuzz test for FUZZTIME (default 10s), one after the other: Go takes one at a time.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_go
cd "$ROOT"
grep -rl --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do
	sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$file" | while read -r name; do
		say "$name in $(dirname "$file")"
		go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-10s}" "$(dirname "$file")"
	done
done
