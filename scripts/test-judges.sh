#!/usr/bin/env bash
# Other people's tools judge recordings, exports and imports: DuckDB, pyarrow, pandas, polars and (where there is a
# Java) Spark read the tables, ClickHouse (chdb) those of uploaded recordings, HolisticTraceAnalysis and Perfetto's
# schema the exports; as root, a real Nsight Systems records for the importer. The newest vLLM and SGLang make messages
# for the parsers, OpenAI's client asks a server. They are installed into build/judges, once: 2 GB on disk, a few
# minutes.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
use_go

venv=$ROOT/build/judges
# HolisticTraceAnalysis 0.5.0 does what pandas 3 refuses. The second line is what the engines' own encoders import.
wanted="HolisticTraceAnalysis==0.5.0 perfetto==0.59.1 duckdb==2.0.0 pyarrow pandas<3 polars chdb==4.4.0"
wanted="$wanted msgspec pyzmq pydantic cloudpickle openai"
! command -v java >/dev/null 2>&1 || wanted="$wanted pyspark"
if [ "$(cat "$venv/complete" 2>/dev/null)" != "$wanted" ]; then
	say "installing $wanted into $venv"
	rm -rf "$venv"
	python3 -m venv "$venv"
	# --no-compile: of the many thousand files few are ever imported.
	# shellcheck disable=SC2086 # words
	"$venv/bin/pip" install -q --disable-pip-version-check --no-compile $wanted ||
		die "pip could not install $wanted: is the Python package index reachable?"
	echo "$wanted" >"$venv/complete"
fi
"$venv/bin/pip" download -q --disable-pip-version-check --no-deps --only-binary=:all: -d "$venv/engines" vllm sglang ||
	die "pip could not download vllm and sglang: is the Python package index reachable?"
export INFERSCOPE_ENGINES=$venv/engines
export INFERSCOPE_JUDGES_PYTHON=$venv/bin/python INFERSCOPE_TEST_PYTHON=$venv/bin/python CGO_ENABLED=0
scripts/tools.sh versitygw pytools
go test -count=1 -v -timeout 15m -run 'TestOthers' ./internal/recording/archive
exec go test -count=1 -v -timeout 15m ./test/judges
