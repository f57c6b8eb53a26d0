/**
 * The two fixed files of an evidence package that let an auditor check it without this software. In the script, `@{` stands for a
 * dollar sign and a brace, which would otherwise start a substitution in the template literal.
 */

export const CHECK_SH = String.raw`#!/usr/bin/env bash
# Checks this unpacked evidence package with nothing but bash 4, openssl, b3sum and the coreutils.
# Usage: bash check.sh [sha256:<fingerprint of the signer's key, learned elsewhere>]
# Exit: 0 authentic, intact and tied to a signed checkpoint; 1 not; 2 a tool is missing.
export LC_ALL=C
set -u
shopt -s nullglob dotglob
case $0 in */*) cd -- "@{0%/*}" || exit 2 ;; esac
# what others wrote is printed without anything that could control a terminal
say() { printf '%s\n' "@{1//[^ -~]/?}"; }
fail() { say "MISMATCH $1"; exit 1; }
[ "@{BASH_VERSINFO[0]}" -ge 4 ] || { echo 'this check needs bash 4 or newer'; exit 2; }
for tool in openssl sha256sum b3sum base64 date tail tr wc mktemp; do
  command -v "$tool" > /dev/null || { echo "this check needs $tool"; exit 2; }
done

# The manifest is one line of canonical JSON: in its strings every quote is escaped, so these patterns find keys only.
manifest=$(< manifest.json) || fail 'manifest.json'
field() { local key="\"$1\":\"?([^\",}]*)"; [[ $manifest =~ $key ]] && printf '%s' "@{BASH_REMATCH[1]}"; }
# a member of the exporter cannot pass for one of the manifest
for key in audit_record_count chain chain_head chain_intact checkpoint_seq first_mismatch_id first_seq from head_hash last_seq \
  prev_hash_before_first public_key_fingerprint record_count session_id start_hash tenant_id to; do
  rest=@{manifest#*"\"$key\":"}
  [[ $rest != *"\"$key\":"* ]] || fail "manifest.json: $key stands there twice"
done

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
  case $name in
    before.txt | records.txt | lead.txt | checkpoints.txt | audit.txt | audit-checkpoints.txt)
      # neither is read below: a last line without its end, and bytes of zero
      [ -z "$(tail -c 1 < "$name" | tr '\0' x)" ] && [ "$(tr -cd '\0' < "$name" | wc -c)" -eq 0 ] || fail "$name: not lines of text"
      ;;
    pubkey.pem | VERIFY.md | check.sh | SHA256SUMS | B3SUMS | bundles/*.svcb) ;;
    *) fail "$name: not a file of a package" ;;
  esac
  found=$((found + 1))
done
for name in before.txt records.txt lead.txt checkpoints.txt audit.txt audit-checkpoints.txt SHA256SUMS B3SUMS; do
  [ -f "$name" ] || fail "$name: missing"
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

# 3. Each checkpoint is of this chain and signed by a key in pubkey.pem: the current one, one that was retired, or one
# of an installation that the tenant came from. The latter count only up to where former_keys in the manifest says.
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
whole() { case $1 in '' | 0* | *[!0-9]*) return 1 ;; esac; [ "@{#1}" -le 16 ] && [ "$1" -le 9007199254740991 ]; }
keys=0
while IFS= read -r line; do
  case $line in *'BEGIN PUBLIC KEY'*) keys=$((keys + 1)) ;; esac
  printf '%s\n' "$line" >> "$work/key.$keys"
done < pubkey.pem
limit=()
limit_of_audit=()
for ((k = 1; k <= keys; k++)); do
  print=$(openssl pkey -pubin -in "$work/key.$k" -outform DER 2> /dev/null | sha256sum)
  former="\"sha256:@{print%% *}\":"
  [[ $manifest == *"$former"* ]] || continue
  until='\{"audit":\{"generation":([0-9]+),"seq":([0-9]+)\},"bundles":[0-9]+,"generation":([0-9]+),"seq":([0-9]+)\}'
  former=$former$until
  [[ $manifest =~ $former ]] || fail 'manifest.json: former_keys'
  limit[k]="@{BASH_REMATCH[4]} @{BASH_REMATCH[3]}"
  limit_of_audit[k]="@{BASH_REMATCH[2]} @{BASH_REMATCH[1]}"
done
# of a key with the limit $1: whether it counts for record $2, and for as many accepted losses as $3
counts() { [ -z "$1" ] || { [ "$2" -le "@{1% *}" ] && [ "$3" -le "@{1#* }" ]; }; }
tenant=$(field tenant_id)
# the notes in file $1 about chain $2, by their records
signed=()
read_notes() {
signed=()
exec 3< "$1"
while IFS= read -r type <&3; do
  { IFS= read -r origin && IFS= read -r at && IFS= read -r hash && IFS= read -r gap; } <&3 || fail "$1"
  head=("$type" "$origin" "$at" "$hash")
  # after an accepted loss of records a note says how many losses there were
  losses=0
  case $gap in 'generation '*)
    whole "@{gap#generation }" || fail "$1"
    head+=("$gap")
    losses=@{gap#generation }
    IFS= read -r gap <&3 || fail "$1"
    ;;
  esac
  { [ "$type" = svc-chain-head/v1 ] && whole "$at" && [[ $hash =~ ^[0-9a-f]{64}$ ]] && [ -z "$gap" ]; } || fail "$1"
  [ "@{origin#*/}" = "$tenant/$2" ] || fail "$1: a checkpoint of $origin"
  printf '%s\n' "@{head[@]}" > "$work/note"
  known=no
  late=
  while IFS= read -r line <&3 && [ -n "$line" ]; do
    printf '%s' "@{line##* }" | base64 -d 2> /dev/null | tail -c 64 > "$work/signature"
    for ((k = 1; k <= keys; k++)); do
      openssl pkeyutl -verify -pubin -inkey "$work/key.$k" -rawin -in "$work/note" -sigfile "$work/signature" \
        > /dev/null 2>&1 || continue
      if [ "$1" = audit-checkpoints.txt ]; then until=@{limit_of_audit[k]-}; else until=@{limit[k]-}; fi
      if counts "$until" "$at" "$losses"; then known=yes; else late=yes; fi
    done
  done
  [ "$known$late" != noyes ] || fail "$1: the key of the checkpoint of record $at does not count for it"
  [ "$known" = yes ] || fail "$1: no key in pubkey.pem signed the checkpoint of record $at"
  { [ -z "@{signed[at]-}" ] || [ "@{signed[at]}" = "$hash" ]; } || fail "$1: two checkpoints of record $at"
  signed[at]=$hash
done
}
chain=$(field chain)
read_notes checkpoints.txt "$chain"

# 4. Every record's hash follows from its text and the hash before it, up to a record whose hash was signed.
[ "$(field chain_intact)" = true ] || say "the manifest states a broken chain, first at: $(field first_mismatch_id)"
prev=$(field start_hash)
checkpoint=$(field checkpoint_seq)
whole "$checkpoint" || checkpoint=0
place='"seq":([1-9][0-9]{0,15})[,}]'
seq=0
for file in before.txt records.txt lead.txt; do
  if IFS= read -r line < "$file" && [[ $line =~ $place ]]; then
    seq=$((BASH_REMATCH[1] - 1))
    break
  fi
done
{ [ -z "@{signed[seq]-}" ] || [ "@{signed[seq]}" = "$prev" ]; } || fail 'checkpoints.txt: another hash before the first record'
[ -s before.txt ] || { [ "$seq" = 0 ] && [[ $prev =~ ^0{64}$ ]]; } || fail 'before.txt: the record before the first one is missing'
key='"chain_head":\{"at":"[^"]*","hash":"([0-9a-f]{64})","seq":([0-9]{1,16})\}'
[[ $manifest =~ $key ]] || fail 'manifest.json: chain_head'
head_hash=@{BASH_REMATCH[1]}
head_seq=@{BASH_REMATCH[2]}
# as the records of the session have it; empty in a package of a window
session=
key='"session_id":"([^"\\]|\\.)*"'
[[ $manifest =~ $key ]] && session=@{BASH_REMATCH[0]}
follow() {
  n=0
  while IFS= read -r line; do
    hash=@{line%% *}
    text=@{line#* }
    computed=$(printf '%s\n%s' "$prev" "$text" | b3sum --no-names)
    [ "$computed" = "$hash" ] || fail "$1: line $((n + 1))"
    prev=$hash
    n=$((n + 1))
    seq=$((seq + 1))
    { [ -z "@{signed[seq]-}" ] || [ "@{signed[seq]}" = "$hash" ]; } || fail "$1: line $n: a checkpoint states another hash"
    { [[ $text =~ $place ]] && [ "@{BASH_REMATCH[1]}" = "$seq" ] && [[ $text == *"\"tenant_id\":\"$tenant\""* ]]; } ||
      fail "$1: line $n: it is not record $seq of $tenant"
    [ "$seq" != "$head_seq" ] || [ "$hash" = "$head_hash" ] || fail "$1: line $n: chain_head states another hash"
    [ -z "$session" ] || [ "$1" = records.txt ] || [ "$seq" -gt "$head_seq" ] || [[ $text != *"$session"* ]] ||
      fail "$1: line $n: a record of the session outside the range"
  done < "$1"
}
follow before.txt
[ "$prev" = "$(field prev_hash_before_first)" ] || fail 'before.txt: the manifest states another hash'
{ [ ! -s records.txt ] && [ "$(field first_seq)" = null ]; } || [ "$(field first_seq)" = $((seq + 1)) ] ||
  fail 'records.txt: the manifest states another first record'
follow records.txt
{ [ "$n" = 0 ] && [ "$(field last_seq)" = null ]; } || { [ "$(field last_seq)" = "$seq" ] && [ "$seq" -le "$head_seq" ]; } ||
  fail 'records.txt: the manifest states another last record'
[ "$n" = "$(field record_count)" ] || fail 'records.txt: the manifest states another number of records'
[ "$prev" = "$(field head_hash)" ] || fail 'records.txt: the manifest states another last hash'
ok="ok $n $prev"
follow lead.txt
{ [ "$(field chain_intact)" = true ] && [[ $manifest != *'"fault":{'* && $manifest != *'"altered_checkpoints":['* ]]; } ||
  fail 'the manifest states a broken chain'
for at in "@{!signed[@]}"; do
  [ "$at" -le "$seq" ] || fail "checkpoints.txt: record $at is stated and not there"
done
if [ "$seq" != 0 ] || [ "$head_seq" != 0 ]; then
  { [ "$seq" = "$checkpoint" ] && [ "@{signed[seq]-}" = "$prev" ]; } ||
    fail 'checkpoints.txt: no checkpoint at or after the last record'
fi
# The range is that of the window or the session, and its neighbors show that nothing of it was left out.
received() {
  local key='"received_at":"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{12}Z)"'
  if [[ $1 =~ $key ]]; then printf '%s' "@{BASH_REMATCH[1]}"; else printf '~'; fi
}
first= next=
IFS= read -r first < records.txt
IFS= read -r next < lead.txt
last=$(tail -n 1 < records.txt)
before=$(tail -n 1 < before.txt)
from=$(field from)
to=$(field to)
if [ -n "$session" ]; then
  [[ $first == *"$session"* && $last == *"$session"* && $(received "$first") == "$from" ]] ||
    fail 'records.txt: the first and the last record are not of the session'
else
  [ -z "$first" ] || [[ ! $(received "$first") < $from && $(received "$last") < $to ]] ||
    fail 'records.txt: received outside the window'
  [ -z "$before" ] || [[ $(received "$before") < $from ]] || fail 'before.txt: received within the window'
  if [[ $next =~ $place ]] && [ "@{BASH_REMATCH[1]}" -le "$head_seq" ]; then
    [[ ! $(received "$next") < $to ]] || fail 'lead.txt: the first record was received within the window'
  fi
fi
[ -n "$next" ] || [ "$seq" -ge "$head_seq" ] || fail 'lead.txt: the record after the last one is missing'

# 5. Each hold that permitted a record: by the parts of the audit log, each a line with the hash before it, and records up to one
# whose hash was signed, it was opened, its terms were met, it was released, and then used once.
# of member $2 in line $1: its text as it stands there
part() { local key="\"$2\":\"(([^\"\\\\]|\\\\.)*)\""; [[ $1 =~ $key ]] && printf '%s' "@{BASH_REMATCH[1]}"; }
declare -A permits=() state=() terms=() voters=() met=() opened=() released=()
while IFS= read -r line; do
  case $line in *'"decision":"allow"'* | *'"decision":"allow_with_masking"'*) ;; *) continue ;; esac
  hold=$(part "$line" escrow_id)
  [ -n "$hold" ] || continue
  [[ $hold =~ ^[A-Za-z0-9_-]+$ ]] || fail "records.txt: $hold: not the id of a hold"
  permits[$hold]=$((@{permits[$hold]-0} + 1))
done < records.txt
read_notes audit-checkpoints.txt audit
closed=yes
at=
n=0
while IFS= read -r line; do
  if [[ $line =~ ^[0-9a-f]{64}$ ]]; then
    [ "$closed" = yes ] || fail "audit.txt: line $n: no checkpoint at the end of a part"
    prev=$line
    closed=no
    at=0
    continue
  fi
  n=$((n + 1))
  [ -n "$at" ] || fail 'audit.txt: record 1: no hash before it'
  hash=@{line%% *}
  text=@{line#* }
  computed=$(printf '%s\n%s' "$prev" "$text" | b3sum --no-names)
  [ "$computed" = "$hash" ] || fail "audit.txt: record $n"
  prev=$hash
  closed=no
  { [[ $text =~ $place ]] && { [ "$at" = 0 ] || [ "@{BASH_REMATCH[1]}" = $((at + 1)) ]; } &&
    [[ $text == *"\"tenant_id\":\"$tenant\""* ]]; } || fail "audit.txt: record $n: it does not follow"
  at=@{BASH_REMATCH[1]}
  { [ -z "@{signed[at]-}" ] || [ "@{signed[at]}" = "$hash" ]; } || fail "audit.txt: record $n: a checkpoint states another hash"
  [ -z "@{signed[at]-}" ] || closed=yes
  target='"target_id":"([A-Za-z0-9_-]+)","target_type":"escrow"'
  [[ $text =~ $target ]] || continue
  hold=@{BASH_REMATCH[1]}
  [ -n "@{permits[$hold]-}" ] || continue
  detail=$(part "$text" detail)
  case @{state[$hold]-unopened}:$(part "$text" action) in
    unopened:escrow.created) terms[$hold]=$detail opened[$hold]=$(received "$text") state[$hold]=open ;;
    open:escrow.vote_cast)
      who=$(part "$text" actor_id)
      who=@{who//[^!-~]/_}
      if [ "$detail" = approve ]; then
        case " @{voters[$hold]-}" in *" $who "*) ;; *) voters[$hold]="@{voters[$hold]-}$who " ;; esac
      fi
      ;;
    open:escrow.condition_reported)
      condition=@{detail% is *}
      met[$hold]=@{met[$hold]-$'\n'}
      met[$hold]=@{met[$hold]//$'\n'"$condition"$'\n'/$'\n'}
      case $detail in *' is met') met[$hold]="@{met[$hold]}$condition"$'\n' ;; esac
      ;;
    open:escrow.released) released[$hold]=$(received "$text") state[$hold]=released ;;
    released:escrow.consumed) state[$hold]=used ;;
    unopened:* | used:*) ;;
    *:escrow.consumed | *:escrow.rejected | *:escrow.expired | *:escrow.cancelled) state[$hold]=ended ;;
  esac
done < audit.txt
[ "$closed" = yes ] || fail "audit.txt: no checkpoint at the end of a part"
[ "$n" = "$(field audit_record_count)" ] || fail 'audit.txt: the manifest states another number of records'
for hold in "@{!permits[@]}"; do
  [ "@{state[$hold]-}" = used ] || fail "audit.txt: hold $hold: not shown to be opened, released and used"
  [ "@{permits[$hold]}" = 1 ] || fail "audit.txt: hold $hold: used once, and it permitted @{permits[$hold]} records"
  form='^([A-Za-z0-9_]+), ([0-9]{1,6}) approvals?(, ([0-9]{1,6}) conditions?)?(, after ([0-9]{1,9}) seconds)?(, |$)'
  [[ @{terms[$hold]} =~ $form ]] || fail "audit.txt: hold $hold: its terms are not readable"
  approvals=@{BASH_REMATCH[2]}
  conditions=@{BASH_REMATCH[4]:-0}
  delay=@{BASH_REMATCH[6]-}
  read -ra people <<< "@{voters[$hold]-}"
  if [ "@{BASH_REMATCH[1]}" = time_delayed ] && { [ "$approvals" -eq 0 ] || [ "@{#people[@]}" -lt "$approvals" ]; }; then
    # released by time, with five minutes for clocks that differ
    waited=$(($(date -d "@{released[$hold]}" +%s) - $(date -d "@{opened[$hold]}" +%s) + 300)) || waited=0
    { [[ -n $delay && @{opened[$hold]} != '~' && @{released[$hold]} != '~' ]] && [ "$waited" -ge "$delay" ]; } || fail "audit.txt: hold $hold: released before its time"
    approvals=0
  fi
  rest=@{met[$hold]-}
  rest=@{rest//[^$'\n']/}
  { [ "@{#people[@]}" -ge "$approvals" ] && { [ "$conditions" = 0 ] || [ "@{#rest}" -gt "$conditions" ]; }; } ||
    fail "audit.txt: hold $hold: its terms were not met"
  # the terms are last, since names of groups in them are others' text
  say "hold $hold: approved by @{people[*]:-nobody}; its terms: @{terms[$hold]}"
done
echo "$ok"
if [ "$checkpoint" = 0 ]; then echo 'the chain had no record'; else echo "tied to the signed checkpoint of record $checkpoint"; fi
echo "signed by $fingerprint; compare this with what the operator publishes"
`.replaceAll('@{', '${');

export const VERIFY_MD = `# How to check this evidence package

This package holds a range of a tenant's decision records as they were stored, and what is needed to see that nothing
in it was changed, added or left out since it was signed. You need openssl, b3sum, bash 4 and the coreutils, nothing
from the maker of the package.

This text and check.sh come with the package, and a forger would write his own: one that always says ok. Before you run
it, compare check.sh with that of a package that you trust or of the maker's published source, or read it: it is short.

## At once

    bash check.sh sha256:<fingerprint>

It prints "ok" with the number of records and ends with exit code 0, or prints MISMATCH with the place and ends with
exit code 1. The fingerprint is that of the signer's key. Get it another way than with this package: from the
operator's address /pubkey (header X-Svc-Key-Fingerprint), from a contract, or by telephone. A forger can put a key of
his own into a package, so a check without this comparison shows only that the package agrees with itself.

## By hand

The signature over the manifest (of the keys in pubkey.pem openssl takes the first, which is the one that signed):

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

The last hash must be head_hash, the number record_count. The same loop over lead.txt, begun with prev=<head_hash>,
leads from there to the checkpoint: its last hash is the one that was signed. (Where lead.txt is empty, head_hash is.)
The loop over before.txt, begun with prev=<start_hash>, ends with prev_hash_before_first: that is the record before the
first one. Its time, and that of the first record in lead.txt, lie outside the window: nothing of it was left out.

The checkpoints. Each note in checkpoints.txt states, signed at its time, which hash the record of that number had.
Make a directory beside this one and go there, since check.sh refuses files that the manifest does not list; P is this
directory:

    P=../package; awk '/BEGIN/ { n++ } { print > ("key-" n ".pem") }' $P/pubkey.pem

Of the first note (2 * k - 1 and 2 * k give note k; an empty line divides text and signature, and note and note):

    awk -v RS= 'NR == 1' $P/checkpoints.txt > note.txt
    awk -v RS= 'NR == 2 { print $3 }' $P/checkpoints.txt | base64 -d | tail -c 64 > note.sig
    for k in key-*.pem; do echo $k; openssl pkeyutl -verify -pubin -inkey $k -rawin -in note.txt -sigfile note.sig; done
    grep -h "^$(sed -n 4p note.txt) " $P/records.txt $P/lead.txt

One of the keys must verify it: after a rotation that is a retired one for older notes. A key whose fingerprint is in
former_keys of manifest.json is of an installation that the tenant came from: it counts for notes up to record "seq"
and, in a line "generation", up to "generation" accepted losses; for the notes of the audit log both are in "audit". The
last command finds the record. The note whose third line is checkpoint_seq must be there, and name the last record of
lead.txt, or of records.txt where lead.txt is empty.

Who approved. audit.txt holds parts of the audit log. A part begins with a line that is only a hash, and the loop above,
begun with it, leads through the part to a record whose hash is stated by a note in audit-checkpoints.txt. For each hold
that permitted a record (escrow_id) check.sh prints who approved it; in the lines of audit.txt with its id, action says
what happened, actor_id who did it, reason why, and before_hash what they were shown.

## What it shows, and what not

It shows who signed, that the records are complete and in order from first_seq to last_seq, that no other record of the
window was there, and that they are unchanged since the checkpoint of record checkpoint_seq was signed. chain_head is
the last record of the whole chain that the maker knew at the time "at". A checkpoint that was kept elsewhere (the operator
serves each one) shows the same without trust in the signer.
In a session's package (session_id) the first and the last record are of that session; what lies between may be of
others, since the chain can only be checked without gaps. That the session has no record elsewhere is the word of the
signer, except for the packed neighbors.
"chain_intact": false means that the chain was already broken when the package was made, or that no signed checkpoint
vouches for the records: the package is then signed evidence of that, and first_mismatch_id, where it is given, names
the record where it starts. altered_checkpoints, where it is given, lists the records whose stored checkpoints no key
had signed; those are not in the package. fault, where it is given, says what the maker found beside the texts.
It does not show that an enforcement point reported every decision, nor the time, beyond the word of the signer.

The bundles in bundles/ are the signed policy bundles that were in force; records name them in bundle_hash, so that a
decision can be derived again. Each is named by the sha256 of its uncompressed content.

## What only svc-verify checks

The signature of each bundle with the limit of former keys for it ("bundles"), the name of each bundle, the end of a
session's time, each member of the manifest that is not named above, the exact form of each signature line and record,
and what a record of an accepted loss of records states. check.sh reads none of these.
`;
