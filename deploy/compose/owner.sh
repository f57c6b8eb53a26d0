#!/bin/sh
# For the first start of PostgreSQL: the program's login, which owns its database and is not a superuser.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$(cat /run/secrets/owner-password)" --username "$POSTGRES_USER" <<'SQL'
create role svc_app nologin nosuperuser nobypassrls;
create role svc_owner login nosuperuser nobypassrls password :'password' in role svc_app, pg_read_all_stats;
create database svc owner svc_owner;
SQL
