#!/usr/bin/env bash
# Builds llama.cpp's server for the CPU out of what PyPI has, once, in the user's cache, and links it as
# build/llama/llama-server: the sources come with llama-cpp-python. Prints its path. Some 10 minutes of two idle CPUs,
# 80 MB to fetch; needs cmake, ninja and g++.
#   LLAMA_SERVER  one that exists: nothing is built
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

version=0.3.36
folder=${XDG_CACHE_HOME:-$HOME/.cache}/inferscope/llama-$version
if [ -n "${LLAMA_SERVER:-}" ]; then
	echo "$LLAMA_SERVER"
	exit
fi
if [ ! -e "$folder/llama-server" ]; then
	for tool in cmake ninja g++; do
		command -v "$tool" >/dev/null ||
			die "llama-server.sh: needs $tool to build llama-server: install it, or name one in LLAMA_SERVER"
	done
	say "building llama-server in $folder" >&2
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	python3 -m venv "$work/venv"
	"$work/venv/bin/pip" install -q --disable-pip-version-check scikit-build-core flit-core setuptools wheel >&2
	(cd "$work" && venv/bin/pip download -q --disable-pip-version-check --no-deps --no-build-isolation \
		--no-binary :all: "llama-cpp-python==$version" >&2 && tar xf llama_cpp_python-*.tar.gz) ||
		die "llama-server.sh: pip could not fetch llama-cpp-python $version: is the Python package index reachable?"
	build() {
		nice -n 10 cmake -S "$work/llama_cpp_python-$version/vendor/llama.cpp" -B "$work/build" -G Ninja \
			-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
			-DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF &&
			nice -n 10 ninja -C "$work/build" llama-server
	}
	if ! build >"$work/log" 2>&1; then
		tail -20 "$work/log" >&2
		die "llama-server.sh: llama.cpp does not build here"
	fi
	mkdir -p "$folder"
	strip -o "$folder/llama-server.new" "$work/build/bin/llama-server"
	mv "$folder/llama-server.new" "$folder/llama-server"
fi
mkdir -p "$ROOT/build/llama"
ln -sfn "$folder/llama-server" "$ROOT/build/llama/llama-server"
echo "$folder/llama-server"
