/** Sample receivers to copy. The libraries of Standard Webhooks do the same with its headers. */
export const SAMPLES = {
  'Node.js': `import { createHmac, timingSafeEqual } from 'node:crypto';
import { createServer } from 'node:http';

createServer(async (request, response) => {
  const body = Buffer.concat(await request.toArray());
  const [t, ...signatures] = String(request.headers['x-svc-signature']).split(',');
  const time = t.slice('t='.length);
  const expected = createHmac('sha256', process.env.SECRET).update(\`\${time}.\`).update(body).digest();
  // during a rotation there are two signatures
  const genuine = signatures.some((signature) => {
    const given = Buffer.from(signature.slice('v1='.length), 'hex');
    return given.length === expected.length && timingSafeEqual(given, expected);
  });
  const fresh = Math.abs(Date.now() / 1000 - Number(time)) < 300;
  if (!genuine || !fresh) return response.writeHead(400).end();
  const event = JSON.parse(body);
  // the same webhook-id comes again when an answer was lost: act on it once
  console.log(request.headers['webhook-id'], event.event);
  response.writeHead(204).end();
}).listen(8090);`,
  Python: `import hashlib, hmac, json, os, time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        t, *signatures = self.headers["x-svc-signature"].split(",")
        stamp = t.removeprefix("t=")
        expected = hmac.new(os.environ["SECRET"].encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
        # during a rotation there are two signatures
        genuine = any(hmac.compare_digest(s.removeprefix("v1="), expected) for s in signatures)
        fresh = abs(time.time() - int(stamp)) < 300
        self.send_response(204 if genuine and fresh else 400)
        self.end_headers()
        if genuine and fresh:
            # the same webhook-id comes again when an answer was lost: act on it once
            print(self.headers["webhook-id"], json.loads(body)["event"])

HTTPServer(("", 8090), Receiver).serve_forever()`,
  'Standard Webhooks': `import { Webhook } from 'standardwebhooks'; // also for Python, Go, Java, Rust, Ruby, PHP, C#

const event = new Webhook(process.env.SECRET).verify(body, request.headers);`,
} as const;
export type Sample = keyof typeof SAMPLES;
