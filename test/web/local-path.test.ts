import { expect, test } from 'vitest';
import { localPath } from '../../web/lib/local-path.ts';

test('a link leads to a path on this site, however the browser reads it', () => {
  for (const path of ['/', '/approvals/esc_1?decision=approve#top', '/policies//x', '/review?next=//evil.example']) {
    expect(localPath(path), path).toBe(path);
  }
  const others = [
    ...['https://evil.example', '//evil.example', '/\\evil.example', 'evil', '', undefined, 7],
    // what the parser of addresses takes out: dots, also as codes, tabs and line ends
    ...['/.//evil.example', '/%2e//evil.example', '/x/..//evil.example', '/./\\evil.example', '/.\\/evil.example'],
    ...['/\t/evil.example', '/\n\\evil.example', '/\t.//evil.example'],
  ];
  for (const path of others) expect(localPath(path), JSON.stringify(path)).toBeUndefined();
});
