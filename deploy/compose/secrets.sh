#!/bin/sh
# Writes the secrets of compose.yaml, once. Keep a copy of master-key separate from the database backups.
set -eu
umask 077
cd "$(dirname "$0")"
if [ -e secrets ]; then
  echo 'deploy/compose/secrets is there already' >&2
  exit 1
fi
random() { head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n'; }
mkdir secrets
owner=$(random)
redis=$(random)
random > secrets/master-key
random > secrets/postgres-password
printf %s "$owner" > secrets/owner-password
printf %s "postgres://svc_owner:$owner@postgres/svc" > secrets/database-url
printf %s "redis://:$redis@redis:6379" > secrets/redis-url
printf 'requirepass %s\nmaxmemory 256mb\nmaxmemory-policy noeviction\nsave ""\nappendonly no\n' "$redis" > secrets/redis-conf
# the containers read them as their own users, which have no other name here; the folder keeps everyone else out
chmod 644 secrets/*
