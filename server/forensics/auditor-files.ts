/**
 * The two fixed files of an evidence package that let an auditor check it without this software. In the script `@{`
 * stands for a dollar sign and a brace, which a template literal would take for its own.
 */

export const CHECK_SH = String.raw`#!/usr/bin/env bash
# Checks this unpacked evidence package with nothing but bash, openssl, sha256sum and b3sum.
# Usage: bash check.sh [sha256:<fingerprint of the signer's key, learned elsewhere>]
# Exit: 0 authentic and the chain intact, 1 not, 2 a tool is missing.
export LC_ALL=C
set -u
shopt -s nullglob dotglob
case $0 in */*) cd -- "@{0%/*}" || exit 2 ;; esac
fail() { printf 'MISMATCH %s\n' "$1"; exit 1; }
for tool in openssl sha256sum b3sum; do
  command -v "$tool" > /dev/null || { echo "this check needs $tool"; exit 2; }
done

# The manifest is one line of canonical JSON: in its strings every quote is escaped, so these patterns find keys only.
manifest=$(< manifest.json) || fail 'manifest.json'
field() { local key="\"$1\":\"?([^\",}]*)"; [[ $manifest =~ $key ]] && printf '%s' "@{BASH_REMATCH[1]}"; }

# 1. The manifest is signed by the key in pubkey.pem, and that key is the one it names.
openssl pkeyutl -verify -pubin -inkey pubkey.pem -rawin -in manifest.json -sigfile manifest.json.sig > /dev/null 2>&1 ||
  fail 'manifest.json.sig: the signature does not fit manifest.json and pubkey.pem'
fingerprint=$(openssl pkey -pubin -in pubkey.pem -outform DER | sha256sum)
fingerprint="sha256:@{fingerprint%% *}"
[ "$fingerprint" = "$(field public_key_fingerprint)" ] || fail 'pubkey.pem: the manifest names another key'
[ $# -eq 0 ] || [ "$fingerprint" = "$1" ] || fail "pubkey.pem: the key is $fingerprint, not $1"

# 2. The manifest lists exactly the files that are here, with their hashes.
found=0
for name in * bundles/*; do
  if [ "$name" = bundles ] && [ -d bundles ] && [ ! -L bundles ]; then continue; fi
  { [ -f "$name" ] && [ ! -L "$name" ]; } || fail "$name: not a plain file"
  case $name in manifest.json | manifest.json.sig) continue ;; esac
  blake3=$(b3sum --no-names < "$name")
  sha256=$(sha256sum < "$name")
  entry="\"$name\":{\"blake3\":\"$blake3\",\"sha256\":\"@{sha256%% *}\",\"size\":"
  [[ $manifest == *"$entry"* ]] || fail "$name: not the file that the manifest lists"
  found=$((found + 1))
done
listed=0
rest=$manifest
while [[ $rest == *'"size":'* ]]; do
  rest=@{rest#*'"size":'}
  listed=$((listed + 1))
done
[ "$found" -eq "$listed" ] || fail 'a file that the manifest lists is missing'
sha256sum -c SHA256SUMS > /dev/null 2>&1 || fail 'SHA256SUMS'
b3sum --check B3SUMS > /dev/null 2>&1 || fail 'B3SUMS'

# 3. Every record's hash follows from its text and the hash before it.
[ "$(field chain_intact)" = true ] || echo "the manifest states a broken chain, first at: $(field first_mismatch_id)"
prev=$(field prev_hash_before_first)
n=0
while IFS= read -r line; do
  hash=@{line%% *}
  text=@{line#* }
  computed=$(printf '%s\n%s' "$prev" "$text" | b3sum --no-names)
  [ "$computed" = "$hash" ] || fail "records.txt: line $((n + 1))"
  prev=$hash
  n=$((n + 1))
done < records.txt
[ "$n" = "$(field record_count)" ] || fail 'records.txt: the manifest states another number of records'
[ "$prev" = "$(field head_hash)" ] || fail 'records.txt: the manifest states another last hash'
[ "$(field chain_intact)" = true ] || fail 'the manifest states a broken chain'
echo "ok $n $prev"
echo "signed by $fingerprint; compare this with what the operator publishes"
`.replaceAll('@{', '${');

export const VERIFY_MD = `# How to check this evidence package

This package holds a range of a tenant's decision records as they were stored, and what is needed to see that nothing
in it was changed, added or left out since it was signed. You need openssl, sha256sum, b3sum and bash, nothing from
the maker of the package.

## At once

    bash check.sh sha256:<fingerprint>

It prints "ok" with the number of records and ends with exit code 0, or prints MISMATCH with the place and ends with
exit code 1. The fingerprint is that of the signer's key. Get it another way than with this package: from the
operator's address /pubkey (header X-Svc-Key-Fingerprint), from a contract, or by telephone. A forger can put a key of
his own into a package, so a check without this comparison shows only that the package agrees with itself.

## By hand

The signature over the manifest:

    openssl pkeyutl -verify -pubin -inkey pubkey.pem -rawin -in manifest.json -sigfile manifest.json.sig

The fingerprint of the key that signed (the first key in pubkey.pem; further ones are retired keys that signed older
checkpoints or bundles, and the signer vouches for them):

    openssl pkey -pubin -in pubkey.pem -outform DER | sha256sum

The files (manifest.json lists each with sha256, blake3 and size, these two lists included):

    sha256sum -c SHA256SUMS
    b3sum --check B3SUMS

The chain. Each line of records.txt is a BLAKE3 hash, a space and the record; each hash is taken over the hash before
it, a newline and the record. Begin with prev_hash_before_first from manifest.json:

    prev=<prev_hash_before_first>; n=0
    while IFS= read -r l; do h=\${l%% *}; b=\${l#* }; c=$(printf '%s\\n%s' "$prev" "$b" | b3sum --no-names)
     [ "$c" = "$h" ] || { echo "MISMATCH $((n+1))"; exit 1; }; prev=$h; n=$((n+1)); done < records.txt; echo "ok $n $prev"

The last hash must be head_hash, the number record_count.

The checkpoints. Each note in checkpoints.txt states, signed at its time, which hash the record of that number had.
Of the first note (2 * k - 1 and 2 * k give note k):

    awk -v RS= 'NR == 1' checkpoints.txt > note.txt
    awk -v RS= 'NR == 2 { print $3 }' checkpoints.txt | base64 -d | tail -c 64 > note.sig
    openssl pkeyutl -verify -pubin -inkey pubkey.pem -rawin -in note.txt -sigfile note.sig
    grep "^$(sed -n 4p note.txt) " records.txt

The last command finds the record, when it lies in the range. Make these two files in another directory: check.sh
refuses a directory with files that the manifest does not list.

## What it shows, and what not

It shows who signed, that the records are complete and in order from first_seq to last_seq, and that they are
unchanged since then; a checkpoint that was kept elsewhere shows that they are unchanged since that checkpoint.
"chain_intact": false means that the chain was already broken when the package was made: the package is then signed
evidence of that, and first_mismatch_id names the record where it starts.
It does not show that an enforcement point reported every decision, nor the time, beyond the word of the signer.

The bundles in bundles/ are the signed policy bundles that were in force; records name them in bundle_hash, so that a
decision can be derived again.
`;
