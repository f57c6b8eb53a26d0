import { describe, expect, test } from 'vitest';
import { sha256 } from '../../server/lib/crypto.ts';
import { html, PAGE_HEADERS, page, wantsPage } from '../../server/lib/page.ts';

describe('a page', () => {
  test('shows whatever is put into it as text', () => {
    const evil = `"><script>alert('x')</script>&amp;`;
    const text = page(evil, html`<p title="${evil}">${evil}</p>${[html`<b>${evil}</b>`]}${undefined}`);
    expect(text).not.toContain('<script');
    expect(text.match(/&quot;&gt;&lt;script&gt;alert\(&#39;x&#39;\)&lt;\/script&gt;&amp;amp;/g)).toHaveLength(5);
  });

  test('has one style, which its policy names, and may run and load nothing else', () => {
    const [, style] = /<style>([\s\S]*)<\/style>/.exec(page('t', html`x`))!;
    const policy = PAGE_HEADERS['content-security-policy']!;
    expect(policy).toBe(
      `default-src 'none'; style-src 'sha256-${sha256(style!).toString('base64')}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'`,
    );
  });

  test('is sent only to clients that accept HTML', () => {
    const firefox = 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8';
    expect([firefox, 'text/html', 'application/json, text/html;q=0.5'].map(wantsPage)).toEqual([true, true, true]);
    expect([undefined, '*/*', 'application/json', 'text/plain', 'x-text/html'].map(wantsPage)).toEqual([
      false,
      false,
      false,
      false,
      false,
    ]);
  });
});
