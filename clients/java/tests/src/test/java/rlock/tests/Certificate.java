package rlock.tests;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;

/** A self-signed certificate for one host, with its key. */
record Certificate(Path certificate, Path key) {
    static Certificate of(Path folder, String names) {
        try {
            Process made = new ProcessBuilder("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=it",
                    "-addext", "subjectAltName=" + names, "-keyout", "key.pem", "-out", "cert.pem")
                    .directory(folder.toFile()).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
            if (made.waitFor() != 0) throw new IllegalStateException("openssl");
        } catch (IOException broken) {
            throw new UncheckedIOException(broken);
        } catch (InterruptedException interrupt) {
            throw new IllegalStateException(interrupt);
        }
        return new Certificate(folder.resolve("cert.pem"), folder.resolve("key.pem"));
    }

    /** The settings of a server at this port. */
    String[] settings(int port, String clients) {
        return new String[] {"--tls-port", "" + port, "--tls-cert-file", certificate.toString(), "--tls-key-file", key.toString(),
            "--tls-ca-cert-file", certificate.toString(), "--tls-auth-clients", clients};
    }
}
