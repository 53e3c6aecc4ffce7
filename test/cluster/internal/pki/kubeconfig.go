// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"encoding/base64"
	"fmt"
)

// Kubeconfig is a client configuration with everything embedded, so that the file can be copied.
func Kubeconfig(server string, ca []byte, client Pair) []byte {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: fettle-test
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: user
  user:
    client-certificate-data: %s
    client-key-data: %s
contexts:
- name: fettle-test
  context: {cluster: fettle-test, user: user}
current-context: fettle-test
`, server, b64(ca), b64(client.Cert), b64(client.Key))
}
