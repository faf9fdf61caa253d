// Package access says how franz-go reaches brokers: by the file that tests/support/clients/access.py writes.
package access

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type given struct {
	Bootstrap string
	Login     *struct {
		User, Password string
		CaFile         string `json:"ca_file"`
	}
}

// Options of a client that reaches what file says.
func Options(file string) ([]kgo.Opt, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var to given
	if err := json.Unmarshal(text, &to); err != nil {
		return nil, err
	}
	found := []kgo.Opt{kgo.SeedBrokers(strings.Split(to.Bootstrap, ",")...), kgo.MetadataMinAge(100 * time.Millisecond)}
	if to.Login == nil {
		return found, nil
	}
	pem, err := os.ReadFile(to.Login.CaFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	mechanism := scram.Auth{User: to.Login.User, Pass: to.Login.Password}.AsSha512Mechanism()
	return append(found, kgo.DialTLSConfig(&tls.Config{RootCAs: roots}), kgo.SASL(mechanism)), nil
}
