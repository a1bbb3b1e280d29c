// Package certificate makes files for servers that speak TLS in tests.
package certificate

import (
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// Files writes the certificate that package httptest has for 127.0.0.1, and its key, and returns a transport of clients
// that trust it.
func Files(t testing.TB) (cert, key string, transport *http.Transport) {
	t.Helper()
	lent := httptest.NewTLSServer(nil)
	defer lent.Close()
	secret, err := x509.MarshalPKCS8PrivateKey(lent.TLS.Certificates[0].PrivateKey)
	must.NoError(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, b := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: lent.Certificate().Raw},
		key:  {Type: "PRIVATE KEY", Bytes: secret},
	} {
		must.NoError(t, os.WriteFile(file, pem.EncodeToMemory(b), 0o600))
	}
	transport, ok := lent.Client().Transport.(*http.Transport)
	if !ok {
		t.Fatalf("a client with %T", lent.Client().Transport)
	}
	return cert, key, transport.Clone()
}
