"""Makes certificates for tests of TLS, signed by an authority of the test."""

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOUR = datetime.timedelta(hours=1)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


@dataclass(frozen=True)
class CertificateFiles:
    """Paths of the PEM files of a certificate and of its key."""

    cert: str
    key: str


class CertificateAuthority:
    """A certificate authority with its files in a folder; `file` is its own certificate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._cert = self._signed(name, self._key, is_authority=True)
        self.file = str(folder / f"{name}.crt")
        Path(self.file).write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def issue(self, host: str, *, name: str | None = None, is_expired: bool = False) -> CertificateFiles:
        """Make the certificate of a host; its files are called `name`, by default as the host."""
        key = ec.generate_private_key(ec.SECP256R1())
        stem = self._folder / f"{self._name}-{name or host}"
        cert, key_file = stem.with_suffix(".crt"), stem.with_suffix(".key")
        signed = self._signed(host, key, is_expired=is_expired)
        cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return CertificateFiles(str(cert), str(key_file))

    def _signed(
        self,
        common: str,
        key: ec.EllipticCurvePrivateKey,
        *,
        is_authority: bool = False,
        is_expired: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        ends = now - datetime.timedelta(seconds=1) if is_expired else now + HOUR
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(common))
            .issuer_name(_name(self._name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - HOUR)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(common)]), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())
