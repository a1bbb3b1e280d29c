#!/usr/bin/env bash
# Fetches what test/browser drives a Chromium with; exits 77 where there is no browser, no npm or no package index: that
# test is skipped then.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT/test/browser"

browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
if ! command -v npm >/dev/null || ! browser >/dev/null; then
	say "no npm, or no Chromium here: apt-get install nodejs npm chromium"
	exit 77
fi
if [ ! -d node_modules/playwright-core ] && ! npm ci --no-audit --no-fund >&2; then
	say "playwright-core could not be fetched"
	exit 77
fi
