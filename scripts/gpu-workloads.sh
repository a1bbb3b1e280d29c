#!/usr/bin/env bash
# Builds the C++ workloads of the GPU check, test/gpu/workloads/*.cu, into build/gpu-workloads: with NVCC, or the nvcc
# of a CUDA toolkit (12 or later) on this machine, or else with NVIDIA's compiler packages from PyPI in a folder of
# their own. Needs no GPU.
#   ARCH    compute capability to build for, beside PTX for later ones (default: 90)
#   SIM=1   link the simulated CUDA's runtime (build/cudasim) instead of NVIDIA's: the programs then run without a GPU
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
arch=${ARCH:-90}
out=build/gpu-workloads${SIM:+-sim}
packages=build/nvcc

toolkit() {
	for c in "${NVCC:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
		[ -n "$c" ] && [ -x "$c" ] && { echo "$c" && return; }
	done
	return 1
}

from_pypi() {
	if [ ! -x "$packages/bin/python" ]; then
		"${PYTHON:-python3}" -m venv "$packages"
		"$packages/bin/pip" install --quiet --disable-pip-version-check \
			'nvidia-cuda-nvcc>=13,<14' 'nvidia-nvvm>=13,<14' 'nvidia-cuda-crt>=13,<14' \
			'nvidia-cuda-runtime>=13,<14' 'nvidia-cuda-cccl>=13,<14'
	fi
	find "$PWD/$packages/lib" -path '*/bin/nvcc' -type f | head -1
}

nvcc=$(toolkit) || nvcc=$(from_pypi)
[ -n "$nvcc" ] || die "no nvcc: install a CUDA toolkit, or see $packages"
home=$(cd "$(dirname "$nvcc")/.." && pwd)
flags=(
	-O2 -std=c++17 "-I$home/include"
	"-gencode=arch=compute_$arch,code=sm_$arch" "-gencode=arch=compute_$arch,code=compute_$arch"
)
if [ -n "${SIM:-}" ]; then
	[ -f build/cudasim/libcudart_static.a ] || die "build/cudasim is missing: make cudasim"
	link=(-cudart none build/cudasim/libcudart_static.a -ldl -lpthread)
else
	link=(-cudart static "-L$home/lib" -ldl -lrt -lpthread)
fi
mkdir -p "$out"
pids=()
for source in test/gpu/workloads/*.cu; do
	"$nvcc" "${flags[@]}" -o "$out/$(basename "$source" .cu)" "$source" "${link[@]}" &
	pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
echo "built into $out with $nvcc"
