"""Sign a person in at the issuer of a gateway: in the browser, or with a code typed on another device."""
