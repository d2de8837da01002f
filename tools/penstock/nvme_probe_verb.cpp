#include <memory>

#include "tools/nvme/probe.h"
#include "tools/nvme/profile_file.h"
#include "tools/nvme/update_rate.h"
#include "tools/penstock/command.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/text_table.h"

namespace penstock::tools {
namespace {

struct Flags {
  std::vector<std::string> paths;
  std::string profile;
  uint64_t size_bytes = 0;
  double seconds = 20;
  std::string engine = "auto";
};

constexpr uint64_t kWantedBytes = 2 * kGiB;
constexpr double kLayoutSeconds = 5;

std::string unknown_or(const std::optional<MixCurve>& curve, double read_share) {
  return curve ? fixed(curve->gbps(read_share), 2) : "unknown";
}

Json rate_json(const DriveRates& rates, double read_share) {
  Json json{{"burst", rates.burst.gbps(read_share)}};
  if (rates.sustained) {
    json["sustained"] = rates.sustained->gbps(read_share);
  } else {
    json["sustained"] = "unknown";
  }
  return json;
}

Json grid_json(const std::vector<GridPoint>& grid) {
  Json points = Json::array();
  for (const GridPoint& point : grid) {
    points.push_back({{"block_bytes", point.block_bytes},
                      {"depth", point.depth},
                      {"read_gbps", point.read_gbps},
                      {"write_gbps", point.write_gbps}});
  }
  return points;
}

Json drive_json(const DriveProbe& probe, const DriveRates& rates) {
  const aio::DriveInfo& drive = probe.drive;
  Json json{{"path", rates.path},
            {"file_system", drive.file_system},
            {"device", drive.device},
            {"beneath", drive.beneath},
            {"model", drive.model},
            {"pcie_link", drive.pcie_link},
            {"alignment_bytes", probe.alignment_bytes},
            {"free_bytes", drive.free_bytes},
            {"read_gbps", rate_json(rates, 1)},
            {"write_gbps", rate_json(rates, 0)},
            {"mixed_gbps", rate_json(rates, 0.5)},
            {"mix_curve", probe.mix_curve},
            {"rate_by_memory", probe.by_memory.points()},
            {"latency_us", {{"p50", probe.latency_p50_us}, {"p99", probe.latency_p99_us}}},
            {"flush_s", probe.flush_s},
            {"best", {{"block_bytes", probe.best.block_bytes}, {"depth", probe.best.depth}}},
            {"grid", grid_json(probe.grid)},
            {"engine", probe.engine}};
  if (drive.temperature_celsius) json["temperature_celsius"] = *drive.temperature_celsius;
  return json;
}

std::string drive_text(const DriveProbe& probe, const DriveRates& rates) {
  const aio::DriveInfo& drive = probe.drive;
  std::string out = text(rates.path, ": ", drive.file_system, " on ", drive.device.empty() ? "no device" : drive.device,
                         drive.beneath.empty() ? "" : " (" + drive.beneath + ")", drive.model.empty() ? "" : ", ",
                         drive.model, ", ", bytes_text(drive.free_bytes), " free\n");
  if (!drive.pcie_link.empty()) out += text("  link ", drive.pcie_link, "\n");
  if (drive.temperature_celsius) out += text("  ", fixed(*drive.temperature_celsius, 0), " degrees Celsius\n");
  out += text("  ", probe.engine, "\n  direct I/O in multiples of ", probe.alignment_bytes, " B, 4 KiB read in ",
              microseconds(probe.latency_p50_us), " us (99 %: ", microseconds(probe.latency_p99_us), "), flush in ",
              seconds_text(probe.flush_s), "\n\n");

  TextTable rate({"GB/s", "burst", "sustained"});
  for (const auto& [share, gbps] : probe.mix_curve) {
    const std::string name = share == 1 ? "read" : share == 0 ? "write" : text(fixed(share * 100, 0), " % read");
    rate.add({name, fixed(gbps, 2), unknown_or(rates.sustained, share)});
  }
  std::string memory;
  for (const auto& [bytes, share] : probe.by_memory.points()) {
    memory += text(memory.empty() ? "" : ", ", bytes_text(bytes), " ", fixed(share * 100, 0), " %");
  }
  TextTable grid({"block", "depth", "read GB/s", "write GB/s", ""});
  for (const GridPoint& point : probe.grid) {
    const bool best = point.block_bytes == probe.best.block_bytes && point.depth == probe.best.depth;
    grid.add({bytes_text(point.block_bytes), text(point.depth), fixed(point.read_gbps, 2), fixed(point.write_gbps, 2),
              best ? "best" : ""});
  }
  return out + rate.str() + "\nshare of that rate if the buffers take this much memory: " + memory + "\n\n" +
         grid.str();
}

Result<Answer> probe(Session& session, const Flags& flags) {
  PENSTOCK_TRY(check_duration(flags.seconds));
  PENSTOCK_TRY_ASSIGN(profile_path, profile_path_to_write(flags.profile));
  PENSTOCK_TRY_ASSIGN(profile, load_or_begin_profile(profile_path));
  PENSTOCK_TRY_ASSIGN(engine, aio::parse_engine_choice(flags.engine));
  const double laying_out = kLayoutSeconds / (kLayoutSeconds + flags.seconds);
  PENSTOCK_TRY_ASSIGN(rig, Rig::make({.paths = flags.paths,
                                      .size_bytes = flags.size_bytes,
                                      .wanted_bytes = kWantedBytes,
                                      .memory_bytes = kProbeMemoryBytes,
                                      .layout_seconds = kLayoutSeconds,
                                      .engine = engine},
                                     ticking(session, "write scratch files", 0, laying_out)));
  PENSTOCK_TRY_ASSIGN(probes, probe_drives(*rig, flags.seconds, ticking(session, "probe", laying_out, 1)));

  const std::vector<std::string> lines = remarks(*rig);
  rig.reset();  // before the next measurement takes memory
  PENSTOCK_TRY_ASSIGN(update_gbps, measure_update_gbps(StateForm(), 0));
  put_host(profile, update_gbps);

  Answer answer;
  answer.json["drives"] = Json::array();
  for (const DriveProbe& probe : probes) {
    DriveRates rates = probe.rates();
    rates.path = profile_name_of(probe.path);
    put_drive(profile, rates);
    for (const DriveRates& known : profile.drives) {
      if (known.path == rates.path) rates = known;  // with what was known before
    }
    answer.json["drives"].push_back(drive_json(probe, rates));
    answer.text += drive_text(probe, rates) + "\n";
  }
  PENSTOCK_TRY(save_profile(profile, profile_path));
  answer.json["host"] = {
      {"threads", profile.threads}, {"memory_bytes", profile.host_bytes}, {"update_gbps", profile.host_gbps}};
  answer.json["remarks"] = lines;
  answer.json["profile_path"] = profile_path;
  for (const std::string& line : lines) answer.text += line + "\n";
  answer.text +=
      text("host: ", profile.threads, profile.threads == 1 ? " processor, " : " processors, ",
           bytes_text(profile.host_bytes), " of memory, updates at ", fixed(profile.host_gbps, 1), " GB/s\n");
  answer.text += "profile: " + profile_path + "\n";
  return answer;
}

}  // namespace

Verb nvme_probe_verb() {
  auto flags = std::make_shared<Flags>();
  return {
      "nvme probe",
      "Measure drives in half a minute, and write the machine's profile",
      "Writes a scratch file in each folder and measures reads, writes and mixtures of both, by block size and depth,\n"
      "and how fast the processors update. The results go into the machine's profile, which `penstock plan` reads;\n"
      "with --profile FILE they go there, for `penstock plan --machine FILE` and `penstock update --machine FILE`.\n"
      "It measures burst rates; sustained rates stay \"unknown\" until `penstock nvme bench --steady` measures them.",
      {{"penstock nvme probe /mnt/nvme0 /mnt/nvme1", "Probe two drives"},
       {"penstock nvme probe /mnt/nvme0 --profile node7.json",
        "For `penstock plan --machine node7.json` on any machine"}},
      [flags](Options& options) -> Action {
        options.paths("PATH", flags->paths, 1, "Folders, one on each drive");
        options.file("--profile", flags->profile,
                     "Profile to write or update; default: ~/.config/penstock/profile.json, made if missing");
        options.bytes("--size", flags->size_bytes, "Size of each scratch file; 0: up to 2GiB, as space allows");
        options.seconds("--duration", flags->seconds, "Time to measure, plus 5 s to write the scratch files");
        engine_option(options, flags->engine);
        return [flags](Session& session) { return probe(session, *flags); };
      }};
}

}  // namespace penstock::tools
