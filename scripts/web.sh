#!/usr/bin/env bash
# Bundles the page of HTML reports: web/src into internal/report/html/assets, with the esbuild of web/package-lock.json.
# With --check it only says whether what is in the tree is what comes out, and touches nothing; it exits 77 where node
# or esbuild cannot be had.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT/web"

assets=$ROOT/internal/report/html/assets
if ! command -v npm >/dev/null; then
	say "no npm here: apt-get install nodejs npm"
	exit 77
fi
if [ ! -x node_modules/.bin/esbuild ] && ! npm ci --no-audit --no-fund >&2; then
	say "esbuild could not be fetched"
	exit 77
fi

# bundle DIR: the same source gives the same bytes wherever it is made.
bundle() {
	local flags=(--bundle --minify --target=es2022 --legal-comments=none --charset=utf8 --log-level=warning)
	node_modules/.bin/esbuild src/main.js "${flags[@]}" --format=iife --outfile="$1/page.js"
	node_modules/.bin/esbuild src/page.css "${flags[@]}" --outfile="$1/page.css"
}

if [ "${1:-}" != --check ]; then
	bundle "$assets"
	exit 0
fi
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
bundle "$copy"
for file in page.js page.css; do
	cmp "$assets/$file" "$copy/$file" >&2 ||
		die "internal/report/html/assets/$file is not what web/src makes: run scripts/web.sh and commit the result"
done
