#!/usr/bin/env bash
# PyTorch as PyPI has it, with CUDA's libraries, on the CPU under the real daemon: whether Python threads keep their
# Python frames, operators and generated code are named, threads' states add up, and the daemon stays within 200 MB. And
# transformers serve and llama.cpp's server on the CPU against their clients. Needs root,
# no GPU. "test-torch.sh prepare" only makes what the tests need.
#   TORCH_PYTHON  an interpreter that has torch; without it a virtual environment is made in the user's cache and linked
#                 as build/torch, once: some 3 GB to fetch, 5.4 GB on disk, a minute or two
#   TORCH         what pip is asked for (default: torch)
#   LLAMA_SERVER  llama.cpp's server (default: one is built, scripts/llama-server.sh; "none": left out)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
[ "${1:-}" = prepare ] || [ "$(id -u)" = 0 ] || die "needs root, as the daemon does: sudo make test-torch"
use_go

venv=${XDG_CACHE_HOME:-$HOME/.cache}/inferscope/torch
if [ -z "${TORCH_PYTHON:-}" ]; then
	TORCH_PYTHON=$venv/bin/python
	if [ ! -e "$venv/with-servers" ]; then
		say "installing ${TORCH:-torch} into $venv"
		rm -rf "$venv"
		python3 -m venv "$venv"
		"$venv/bin/pip" install -q --disable-pip-version-check "${TORCH:-torch}" numpy gguf \
			"transformers[serving]==5.17.0" "openai<3" ||
			die "pip could not install ${TORCH:-torch}: is the Python package index reachable," \
				"and are 6 GB free in $venv?"
		touch "$venv/with-servers"
	fi
	mkdir -p build
	ln -sfn "$venv" build/torch
fi
"$TORCH_PYTHON" -c 'import torch' || die "$TORCH_PYTHON has no torch: pip install torch, or unset TORCH_PYTHON"
if [ "${LLAMA_SERVER:-}" = none ]; then
	unset LLAMA_SERVER
elif ! LLAMA_SERVER=$(scripts/llama-server.sh); then
	say "without llama.cpp's server"
	unset LLAMA_SERVER
else
	export LLAMA_SERVER
fi
[ "${1:-}" != prepare ] || exit 0
export TORCH_PYTHON CGO_ENABLED=0
exec go test -count=1 -v -timeout 20m \
	-run 'TestTheInterpretersPyTorch|TestRunTheInterpretersPyTorch|TestLlamaServer|TestTransformersServe' ./test/torch
