// Cluster DNS: CoreDNS with the few plugins that a one-node test cluster needs.
// It runs on the host beside the other components and answers Pods on the
// bridge's address: Service names from the API server, everything else through
// the host's own resolver. A program of its own because CoreDNS claims global
// flag names (-conf, -version …) that would show up in the other components.
package main

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() { coremain.Run() }
