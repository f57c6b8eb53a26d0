/** How to start the reference proxy, next to the file of routes that its documentation describes. */
export const proxyCommand = (origin: string, key = 'svc_key_…') =>
  `SVC_URL=${origin} \\\nSVC_PROXY_KEY=${key} \\\nSVC_PROXY_ROUTES=routes.json npm run proxy`;
