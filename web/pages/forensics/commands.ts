/** The commands that check a package without this server. */
export const checkCommands = (
  origin: string,
  file = 'evidence.tar',
  fingerprint?: string,
) => `# the key that ${fingerprint ? 'signed' : 'signs'}, and its fingerprint
curl -sSfo pubkey.pem '${origin}/pubkey${fingerprint ? `?fingerprint=${fingerprint}` : ''}'
openssl pkey -pubin -in pubkey.pem -outform DER | sha256sum

# with the program of this project
svc-verify ${file} --pubkey pubkey.pem

# with nothing of it: openssl, sha256sum and b3sum
mkdir -p evidence && tar xf ${file} -C evidence
openssl pkeyutl -verify -pubin -inkey pubkey.pem -rawin \\
  -in evidence/manifest.json -sigfile evidence/manifest.json.sig
(cd evidence && bash check.sh)`;
