// An OpenID provider for the trial: oidc-provider in memory, with one agent that gets tokens for the gateway.
// Its keys are those that oidc-provider has for development: never use it for anything else.

import Provider from 'oidc-provider';

const issuer = 'http://openid:9000';
const scope = 'stock:read stock:write';

const provider = new Provider(issuer, {
  clients: [{
    client_id: 'agent',
    client_secret: 'trial',
    grant_types: ['client_credentials'],
    response_types: [],
    redirect_uris: [],
    scope,
  }],
  scopes: scope.split(' '),
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: false },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_, audience) => (
        { audience, scope, accessTokenFormat: 'jwt', accessTokenTTL: 300, jwt: { sign: { alg: 'RS256' } } }
      ),
    },
  },
});

provider.listen(9000, () => console.log(`listening as ${issuer}`));
