// A real OpenID provider for proofs: oidc-provider as its authors ship it, in memory, with its own pages for sign-in and
// consent. `node server.mjs FILE` reads FILE (see `Told` in provider.py) at start and again on SIGHUP, which is how keys
// are rotated.

import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';

// Installed beside the file it is told by, not beside this one: a checkout stays clean.
const file = process.argv[2];
const { Provider } = await import(createRequire(`${process.cwd()}/`).resolve('oidc-provider'));

let handle;
let reads = 0;

function build() {
  const told = JSON.parse(readFileSync(file, 'utf8'));
  const provider = new Provider(told.issuer, {
    clients: [...told.people, ...told.agents],
    jwks: told.jwks,
    cookies: { keys: [told.cookie_key] },
    scopes: ['openid', ...told.scopes],
    claims: { openid: ['sub', 'tenant', 'groups'] },
    conformIdTokenClaims: false,
    ttl: { AccessToken: told.seconds, ClientCredentials: told.seconds, IdToken: told.seconds },
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: true },
      deviceFlow: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_, resource) => {
          const { audience, algorithm } = told.resources[resource];
          return {
            audience,
            scope: told.scopes.join(' '),
            accessTokenFormat: 'jwt',
            accessTokenTTL: told.seconds,
            jwt: { sign: { alg: algorithm } },
          };
        },
      },
    },
    // When somebody signed in is the code's to say, and nobody's where a program got the token for itself.
    extraTokenClaims: ({ oidc }, token) => ({
      ...told.accounts[token.accountId ?? token.clientId],
      auth_time: (oidc.entities.AuthorizationCode ?? oidc.entities.DeviceCode ?? oidc.entities.RefreshToken)?.authTime,
    }),
    findAccount: (_, id) => told.accounts[id]
      && { accountId: id, claims: () => ({ sub: id, ...told.accounts[id] }) },
  });
  // Whoever reads the proof's log wants to know why the provider said no, and nothing else.
  provider.on('server_error', (_, error) => console.error(error));
  provider.on('grant.error', (_, error) => console.error(error.error, error.error_description));
  handle = provider.callback();
  reads += 1;
  console.log(`keys in use, reading ${reads}`);
}

build();
process.on('SIGHUP', build);
const { port } = new URL(JSON.parse(readFileSync(file, 'utf8')).issuer);
createServer((request, response) => handle(request, response)).listen(Number(port), '127.0.0.1', () => {
  console.log(`listening on http://127.0.0.1:${port}`);
});
