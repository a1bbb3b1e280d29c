# shellcheck shell=bash
# Sourced by the other scripts: where things are, which Go to use, and how to complain.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BIN=$ROOT/bin
TOOLS=$BIN/tools
export ROOT BIN TOOLS PATH="$TOOLS:$PATH"

say() { printf '%s\n' "$*" >&2; }
die() {
	say "error: $*"
	exit 1
}

# as_root CMD...: runs CMD as root, through sudo where we are not root.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null 2>&1; then
		sudo -- "$@"
	else
		die "this needs root and there is no sudo: run as root: $*"
	fi
}

# at_least A B: version A is B or newer.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

# install_go: from the distribution, where its Go is new enough to fetch the right one.
install_go() {
	local offered
	offered=$(apt-cache policy golang-go 2>/dev/null | sed -n 's/^ *Candidate: \([0-9]*:\)\{0,1\}//p')
	at_least "${offered:-0}" 1.21 ||
		die "no Go found, and apt offers ${offered:-none}: install Go 1.21 or newer from https://go.dev/dl"
	say "no Go found: installing golang-go $offered with apt, to fetch the right one"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends golang-go >&2
}

# use_go: finds a Go and lets it fetch the toolchain of go.mod where it is older.
# From 1.21 on Go does that itself, but distributions and images like to set
# GOTOOLCHAIN=local, which forbids it; we lift that only where it is in the way.
use_go() {
	local have need
	if ! command -v go >/dev/null 2>&1 && [ -x /usr/local/go/bin/go ]; then
		PATH=$PATH:/usr/local/go/bin
	fi
	command -v go >/dev/null 2>&1 || install_go
	need=$(awk '$1 == "go" { print $2; exit }' "$ROOT/go.mod")
	have=$(cd / && GOTOOLCHAIN=local go env GOVERSION)
	have=${have#go}
	have=${have%% *}
	if at_least "$have" "$need"; then
		return
	fi
	at_least "$have" 1.21 ||
		die "Go $have is too old to fetch a newer one: install Go 1.21 or newer (https://go.dev/dl)"
	export GOTOOLCHAIN=auto
	say "Go $have is older than $need of go.mod: it will fetch that toolchain itself"
}

# measure_accuracy TEST TIMEOUT [ARGUMENT ...] runs a test of test/diagnosis under the real daemon as root.
measure_accuracy() {
	local test=$1 timeout=$2
	local arguments=(-all -doc "$ROOT/docs/examples/simulator.md")
	[ $# = 2 ] || arguments=("${@:3}")
	use_go
	"$ROOT/scripts/install-deps.sh" demo bench
	"$ROOT/scripts/cudasim.sh"
	make -s -C "$ROOT/testdata/scenarios"
	"$ROOT/scripts/build.sh"
	# Everything is built before root comes in, so that no file of root's is left in a person's caches.
	cd "$ROOT/test/diagnosis" || return
	go test -c -o "$ROOT/build/diagnosis.test" .
	as_root "$ROOT/build/diagnosis.test" -test.run "$test" -test.v -test.timeout "$timeout" \
		-daemon "$BIN/inferscoped" "${arguments[@]}"
}
