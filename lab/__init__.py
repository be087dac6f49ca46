"""The lab: fabrics of namespaces from containerlab files, faults, a job, benches. Only `linkpass lab` imports it."""
