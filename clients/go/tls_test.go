package rlock

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority signs certificates for tests.
type authority struct {
	t    testing.TB
	dir  string
	pool *x509.CertPool
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), pool: x509.NewCertPool()}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority of this test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key, a.cert = a.sign("ca", about, nil)
	a.pool.AddCert(a.cert)
	return a
}

// sign writes NAME.crt and NAME.key.
func (a *authority) sign(name string, about, parent *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	by := a.key
	if parent == nil {
		parent, by = about, key
	}
	bytes, err := x509.CreateCertificate(rand.Reader, about, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: bytes}, ".key": {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(filepath.Join(a.dir, name+file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(bytes)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, cert
}

// server returns the settings of a server with TLS at that port, with a certificate for host that is valid until ends.
func (a *authority) server(port, name, host string, ends time.Time, words ...string) []string {
	a.t.Helper()
	about := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: ends.Add(-48 * time.Hour), NotAfter: ends}
	if ip := net.ParseIP(host); ip != nil {
		about.IPAddresses = []net.IP{ip}
	} else {
		about.DNSNames = []string{host}
	}
	a.sign(name, about, a.cert)
	file := func(name string) string { return filepath.Join(a.dir, name) }
	return append([]string{"--tls-port", port, "--tls-cert-file", file(name + ".crt"), "--tls-key-file", file(name + ".key"),
		"--tls-ca-cert-file", file("ca.crt"), "--tls-auth-clients", "optional"}, words...)
}

func (a *authority) trusted() *tls.Config { return &tls.Config{RootCAs: a.pool} }
